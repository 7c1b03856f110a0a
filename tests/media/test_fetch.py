"""What MediaFetcher loads over HTTP, and all that it refuses, against a real server on 127.0.0.1."""

from __future__ import annotations

import asyncio

import pytest

from app.media.errors import MediaError
from app.media.fetch import Media, MediaFetcher
from app.settings.schema import MediaConfig
from tests.media.loading import HOSTS, INVALID, REFUSED, TOO_LARGE, UNAVAILABLE, fetcher, refusal, verdict
from tests.media.web import Names, Web, moved, ok

# ---------------------------------------------------------------------------------------------------- what works


async def test_fetches_from_an_allowed_host(web: Web) -> None:
    web.pages["/a.png?sig=a%2Bb"] = ok(b"content", "content-type: Image/PNG; q=1")
    assert await fetcher().fetch(web.url("/a.png?sig=a%2Bb#part")) == Media(b"content", "image/png")
    assert "authorization" not in web.heads[0].lower()
    assert "accept-encoding: identity" in web.heads[0].lower()


async def test_follows_redirects_between_allowed_hosts(web: Web) -> None:
    web.pages |= {"/1": moved("/2"), "/2": moved(web.url("/3", "img.cdn.test"), 308), "/3": ok(b"here")}
    names = Names(media_test=["127.0.0.1"], img_cdn_test=["127.0.0.1"])
    assert (await fetcher(names).fetch(web.url("/1"))).data == b"here"
    assert names.asked == ["media.test", "media.test", "img.cdn.test"]


async def test_reads_data_urls() -> None:
    assert await fetcher().fetch("data:image/png;base64,aGVsbG8=") == Media(b"hello", "image/png")


async def test_a_body_of_exactly_the_limit(web: Web) -> None:
    web.pages["/full"] = ok(b"x" * 1000)
    assert len((await fetcher().fetch(web.url("/full"))).data) == 1000


async def test_the_caller_can_lower_the_limit_but_not_raise_it(web: Web) -> None:
    web.pages["/a"] = ok(b"x" * 11)
    for limits, more in (({"max_bytes": 1000}, 10), ({"max_bytes": 10}, 1000)):
        with pytest.raises(MediaError) as caught:
            await fetcher(**limits).fetch(web.url("/a"), max_bytes=more)
        assert verdict(caught.value) == TOO_LARGE


# ---------------------------------------------------------------------------------------------------- hosts and URLs


async def test_without_allowed_hosts_nothing_is_fetched(web: Web) -> None:
    error = await refusal(fetcher(allowed_media_domains=[]), web.url("/a"))
    assert verdict(error) == REFUSED
    assert "--allowed-media-domains" in error.failed.message
    assert web.requests == []


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "media.test.evil.test",
        "evilmedia.test",
        "cdn.test",
        "127.0.0.1",
        "[::1]",
        "localhost",
        "\uff45vil.test",
    ],
)
async def test_other_hosts_are_refused_before_any_look_up(web: Web, host: str) -> None:
    names = Names(media_test=["127.0.0.1"])
    assert verdict(await refusal(fetcher(names), web.url("/a", host))) == REFUSED
    assert (names.asked, web.requests) == ([], [])


@pytest.mark.parametrize(
    "authority",
    ["user@media.test", "user:secret@media.test", "media.test@evil.test", "evil.test@media.test", ":@media.test"],
)
async def test_user_names_in_urls_are_refused(web: Web, authority: str) -> None:
    assert verdict(await refusal(fetcher(), web.url("/a", authority))) == REFUSED
    assert web.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/etc/passwd",
        "../../etc/passwd",
        "media.test/a.png",
        "ftp://media.test/a",
        "gopher://media.test/a",
        "javascript:alert(1)",
        "http:",
        "http://",
        "http:///a",
        "http:media.test/a",
        "http://media.test:0/",
        "http://media.test:99999/",
        "http://media.test:port/",
        "http://[::1/",
        "http://media.test\\@evil.test/",
        "http://evil.test\\.media.test/",
        "http://media.test/a b",
        "http://media.test/\r\nhost: evil.test",
        " http://media.test/",
        "http://media.test/" + "a" * 9000,
    ],
)
async def test_malformed_urls(url: str) -> None:
    names = Names(media_test=["127.0.0.1"])
    assert verdict(await refusal(fetcher(names), url)) == INVALID
    assert names.asked == []


async def test_unicode_names_are_the_hosts_that_they_are_resolved_as(web: Web) -> None:
    web.pages["/a"] = ok(b"book")
    names = Names(**{"xn--bcher-kva_test": ["127.0.0.1"]})
    loader = fetcher(names, allowed_media_domains=["bücher.test"])
    assert (await loader.fetch(web.url("/a", "Bücher.test"))).data == b"book"
    assert (await loader.fetch(web.url("/a", "xn--bcher-kva.test"))).data == b"book"


async def test_a_name_without_address(web: Web) -> None:
    error = await refusal(fetcher(), web.url("/a", "gone.cdn.test"))
    assert verdict(error) == UNAVAILABLE
    assert "does not resolve" in error.failed.message


# ---------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize("address", ["127.0.0.2", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1"])
async def test_names_of_private_addresses_are_refused(web: Web, address: str) -> None:
    error = await refusal(fetcher(Names(media_test=[address])), web.url("/a"))
    assert verdict(error) == REFUSED
    assert address not in error.failed.message


async def test_the_default_policy_refuses_this_very_host(web: Web) -> None:
    web.pages["/a"] = ok(b"secret")
    loader = MediaFetcher(MediaConfig(allowed_media_domains=HOSTS), resolver=Names(media_test=["127.0.0.1"]))
    assert verdict(await refusal(loader, web.url("/a"))) == REFUSED
    assert web.requests == []


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "[::1]",
        "[::ffff:7f00:1]",
        "\uff11\uff12\uff17.\uff10.\uff10.\uff11",
    ],
)
async def test_literal_addresses_pass_the_same_gate(web: Web, host: str) -> None:
    """Any host is allowed here and the system's resolver is asked, which reads octal and hexadecimal numbers."""
    web.pages["/a"] = ok(b"secret")
    loader = MediaFetcher(MediaConfig(allowed_media_domains=["*"], timeout_s=10))
    error = await refusal(loader, web.url("/a", host))
    assert error.failed.status == 400
    assert web.requests == []


async def test_a_name_that_moves_is_connected_to_only_where_it_was_checked(web: Web) -> None:
    """DNS rebinding: the second answer is judged like the first, and no look-up lies between check and connection."""
    web.pages |= {"/1": moved("/2"), "/2": ok(b"secret")}
    names = Names(media_test=["127.0.0.1", "127.0.0.2"])
    assert verdict(await refusal(fetcher(names), web.url("/1"))) == REFUSED
    assert web.requests == ["/1"]
    assert len(names.asked) == 2


async def test_one_look_up_per_connection(web: Web) -> None:
    web.pages["/a"] = ok(b"content")
    names = Names(media_test=["127.0.0.1", "127.0.0.2"])
    assert (await fetcher(names).fetch(web.url("/a"))).data == b"content"
    assert names.asked == ["media.test"]


# ---------------------------------------------------------------------------------------------------- redirects


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://127.0.0.2/", REFUSED),
        ("http://169.254.169.254/latest/meta-data/", REFUSED),
        ("http://evil.test/", REFUSED),
        ("//evil.test/", REFUSED),
        ("http://user@media.test/", REFUSED),
        ("file:///etc/passwd", INVALID),
        ("data:text/plain,hello", INVALID),
        ("ftp://media.test/", INVALID),
        ("http://media.test:bad/", INVALID),
        ("http://media.test\\@evil.test/", INVALID),
    ],
)
async def test_redirects_to_where_nothing_may_be_fetched(web: Web, location: str, expected: tuple[int, str]) -> None:
    web.pages["/1"] = moved(location)
    loader = fetcher(allowed_local_media_path="/etc")
    assert verdict(await refusal(loader, web.url("/1"))) == expected
    assert web.requests == ["/1"]


async def test_a_redirect_to_an_allowed_name_of_a_private_address(web: Web) -> None:
    web.pages["/1"] = moved(web.url("/2", "img.cdn.test"))
    names = Names(media_test=["127.0.0.1"], img_cdn_test=["10.0.0.1"])
    assert verdict(await refusal(fetcher(names), web.url("/1"))) == REFUSED


async def test_redirect_loops_end(web: Web) -> None:
    web.pages["/1"] = moved("/1")
    assert verdict(await refusal(fetcher(max_redirects=2), web.url("/1"))) == UNAVAILABLE
    assert len(web.requests) == 3


# ---------------------------------------------------------------------------------------------------- the loop


async def test_the_loop_runs_on_while_a_large_data_url_is_decoded() -> None:
    url = "data:,%00" + "x" * (8 << 20)
    turns = 0
    task = asyncio.create_task(fetcher(max_bytes=16 << 20).fetch(url))
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert len((await task).data) == (8 << 20) + 1
    assert turns > 1


async def test_cancelling_closes_the_connection(web: Web) -> None:
    closed = asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n")
        await writer.drain()
        await writer.wait_closed()
        closed.set()

    web.pages["/a"] = hang
    task = asyncio.create_task(fetcher().fetch(web.url("/a")))
    async with asyncio.timeout(10):
        while not web.requests:  # noqa: ASYNC110 -- bounded by the time-out
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()

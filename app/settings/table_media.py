"""Rows of the flag table for media: what replicas may fetch for requests, and how much of it."""

from __future__ import annotations

from app.settings.flags import Flag
from app.settings.schema import MediaConfig

_DEFAULT = MediaConfig()

MEDIA_FLAGS = (
    Flag(
        name="allowed-media-domains",
        kind="list",
        group="media",
        target="media.allowed_media_domains",
        default=[],
        metavar="HOST...",
        short=True,
        help="Hosts from which media may be fetched: example.org, *.example.org, or * for any public host. "
        "None given: requests carry media as data URLs. Addresses of private networks are never fetched.",
    ),
    Flag(
        name="allowed-local-media-path",
        kind="str",
        group="media",
        target="media.allowed_local_media_path",
        default="",
        metavar="DIR",
        help="Directory below which requests may name files as file:///... Symbolic links out of it are refused.",
    ),
    Flag(
        name="max-media-bytes",
        kind="size",
        group="media",
        target="media.max_bytes",
        default=_DEFAULT.max_bytes,
        least=1024,
        metavar="SIZE",
        help="Largest image, audio or video file in a request; larger ones get 413.",
    ),
    Flag(
        name="max-media-pixels",
        kind="int",
        group="media",
        target="media.max_pixels",
        default=_DEFAULT.max_pixels,
        least=1,
        most=_DEFAULT.max_pixels,
        help="Most pixels of one image or video frame. The default is the most that Pillow opens.",
    ),
    Flag(
        name="max-video-pixels",
        kind="int",
        group="media",
        target="media.max_video_pixels",
        default=_DEFAULT.max_video_pixels,
        least=1,
        help="Most pixels of all frames together that are taken of one video, or made of one; each costs three bytes "
        "of memory.",
    ),
    Flag(
        name="max-media-seconds",
        kind="float",
        group="media",
        target="media.max_seconds",
        default=_DEFAULT.max_seconds,
        least=0.1,
        metavar="SECONDS",
        help="Longest audio in a request.",
    ),
    Flag(
        name="media-timeout",
        kind="float",
        group="media",
        target="media.timeout_s",
        default=_DEFAULT.timeout_s,
        least=0.1,
        metavar="SECONDS",
        help="Time that fetching one medium may take, redirects included.",
    ),
    Flag(
        name="max-media-redirects",
        kind="int",
        group="media",
        target="media.max_redirects",
        default=_DEFAULT.max_redirects,
        least=0,
        most=20,
        help="Redirects that are followed for one medium; each target must be an allowed host.",
    ),
)

"""What a parent process hands to a replica process: one line of JSON on its standard input."""

from __future__ import annotations

import msgspec

from app.cluster.access import Access
from app.settings.schema import LogConfig, MediaConfig, StageConfig

EXIT_FAILED, EXIT_REFUSED = 1, 3
"""Exit codes of a replica: its engine failed (worth a restart), the master refused it (not worth one)."""


class ReplicaSpec(msgspec.Struct, kw_only=True):
    """One replica. `bind` is ipc://PATH or tcp://HOST:* ; times in seconds.

    `replica_id` is the place that the server's own supervisor fills with it. It is -1 for one that joins from outside,
    which may ask for the number `wanted_id`, or take the one that the master chooses.

    `bind_tcp`: where replicas on other hosts reach it as well, to pull what it holds; "" if nobody does.
    `notify_fd`: a descriptor that is told how far the replica is (app.cluster.local), -1 for none.
    `scratch`: a directory that goes when the server goes, for what an engine leaves in the file system.
    """

    stage: StageConfig
    replica_id: int
    registry: str
    bind: str
    token: str
    served_model_names: list[str]
    shutdown_timeout: float
    slow_client_timeout: float
    parent_pid: int
    encrypt: bool = False
    scratch: str = ""
    wanted_id: int = -1
    bind_tcp: str = ""
    media: MediaConfig = msgspec.field(default_factory=MediaConfig)
    log: LogConfig = msgspec.field(default_factory=LogConfig)
    notify_fd: int = -1

    @property
    def access(self) -> Access:
        """What opens the sockets of this server."""
        return Access(self.token, self.encrypt)

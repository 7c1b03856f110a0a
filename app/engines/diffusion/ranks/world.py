"""Who the ranks are to each other: their meshes, and what they agree on."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from app.engines.diffusion.layout import Layout


class World:
    """One rank among `layout.world`. The ranks of a guidance pass lie next to each other."""

    def __init__(self, rank: int, layout: Layout, device: torch.device) -> None:
        self.rank = rank
        self.layout = layout
        self.device = device
        self._control = dist.new_group(backend="gloo")
        inner = layout.world // layout.cfg
        self.parts: DeviceMesh | None = None
        """The ranks that compute one pass, as ("ring", "ulysses") or ("tensor",); None where each does so alone."""
        if layout.sequence > 1:
            self.parts = self._mesh((layout.cfg, layout.ring, layout.ulysses), ("cfg", "ring", "ulysses"))
        elif layout.tensor > 1:
            self.parts = self._mesh((layout.cfg, inner), ("cfg", "tensor"))
        self.passes: DeviceMesh | None = None
        """The ranks that compute the same part of each pass."""
        if layout.cfg > 1:
            self.passes = init_device_mesh(device.type, (layout.cfg, inner), mesh_dim_names=("cfg", "part"))["cfg"]
        self.shards: DeviceMesh | None = None
        """The ranks over which weights are sharded, ("shard",) or ("replicate", "shard")."""
        if layout.shard:
            shape = (layout.replicate, layout.shard)
            mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
            self.shards = mesh if layout.replicate > 1 else mesh["shard"]

    def _mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        return init_device_mesh(self.device.type, shape, mesh_dim_names=names)[names[1:]]

    def agree(self, wish: bool) -> bool:
        """What rank 0 wishes; every rank has to ask at the same point."""
        word = torch.tensor([wish], dtype=torch.uint8)
        dist.broadcast(word, 0, group=self._control)
        return bool(word.item())


def join(meeting: str, rank: int, layout: Layout, device: torch.device) -> World:
    """Meet the other ranks in the file `meeting`; blocks until all are there."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # they are on one host, whose name may resolve to nothing
    backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=layout.world)
    return World(rank, layout, device)


def rank_device(named: str, rank: int, default: torch.device) -> torch.device:
    """The device of a rank: those of a stage are numbered as the stage names them."""
    if default.type == "cpu" or ":" in named:
        return default
    device = torch.device(default.type, rank)
    torch.accelerator.set_device_index(rank)
    return device

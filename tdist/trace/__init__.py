"""What to make of a traced run (`World(trace=True).trace`): Chrome JSON, last writers, protocol maps."""

from tdist.trace.events import Actor, Event, Memory, NamedTensor, Place, Trace

__all__ = ["Actor", "Event", "Memory", "NamedTensor", "Place", "Trace"]

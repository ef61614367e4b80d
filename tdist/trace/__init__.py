"""What to make of a traced run (`World(trace=True).trace`): Chrome JSON, last writers, protocol maps."""

from tdist.trace.chrome import chrome, chrome_text
from tdist.trace.events import Actor, Event, Memory, NamedTensor, Place, Trace
from tdist.trace.last_writer import Element, History, Link, last_writers, parse_element
from tdist.trace.protocol_map import protocol_map

__all__ = [
    "Actor",
    "Element",
    "Event",
    "History",
    "Link",
    "Memory",
    "NamedTensor",
    "Place",
    "Trace",
    "chrome",
    "chrome_text",
    "last_writers",
    "parse_element",
    "protocol_map",
]

"""The exchange: durable output of map tasks, which outlives the application that computed it.

The order of a write: claim an attempt -> store its files -> sync them -> publish it. A reader
begins with the publication, so it sees a complete attempt or none.
"""

from headrace.exchange.layout import LATEST, MapTask, MapTaskIndex, ShufflePartitionMeta
from headrace.exchange.map_output_reader import MapOutputReader
from headrace.exchange.map_output_writer import MapOutputWriter, Publication
from headrace.exchange.output_registry import OutputRegistry
from headrace.exchange.partition_chunks import PartitionChunk, Reassembly, reassemble
from headrace.exchange.publication import PublishedOutput

__all__ = [
    "LATEST",
    "MapOutputReader",
    "MapOutputWriter",
    "MapTask",
    "MapTaskIndex",
    "OutputRegistry",
    "PartitionChunk",
    "Publication",
    "PublishedOutput",
    "Reassembly",
    "ShufflePartitionMeta",
    "reassemble",
]

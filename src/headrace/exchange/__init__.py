"""The exchange: durable output of map tasks, which outlives the application that computed it.

The order of a write: claim an attempt -> store its files -> sync them -> publish it. A reader
begins with the publication, so it sees a complete attempt or none.
"""

from headrace.exchange.cleanup.attempt_cleanup import AttemptCleanup, BackgroundCleanup
from headrace.exchange.cleanup.pinned_stage import PinnedStage
from headrace.exchange.format.layout import LATEST, MapTask, MapTaskIndex, ShufflePartitionMeta
from headrace.exchange.format.partition_chunks import PartitionChunk, Reassembly, reassemble
from headrace.exchange.format.publication import PublishedOutput
from headrace.exchange.inventory import (
    QueryInventory,
    StageInventory,
    list_queries,
    list_stages,
)
from headrace.exchange.map_output_reader import MapOutputReader
from headrace.exchange.map_output_writer import MapOutputWriter, Publication
from headrace.exchange.output_check import QueryCheck, verify
from headrace.exchange.output_registry import OutputRegistry
from headrace.exchange.remote.output_service import OutputEndpoint, OutputService, ServedOutputs
from headrace.exchange.remote.remote_outputs import RemoteOutputs
from headrace.exchange.stage_description import StageDescription, describe_stages

__all__ = [
    "LATEST",
    "AttemptCleanup",
    "BackgroundCleanup",
    "MapOutputReader",
    "MapOutputWriter",
    "MapTask",
    "MapTaskIndex",
    "OutputEndpoint",
    "OutputRegistry",
    "OutputService",
    "PartitionChunk",
    "PinnedStage",
    "Publication",
    "PublishedOutput",
    "QueryCheck",
    "QueryInventory",
    "Reassembly",
    "RemoteOutputs",
    "ServedOutputs",
    "ShufflePartitionMeta",
    "StageDescription",
    "StageInventory",
    "describe_stages",
    "list_queries",
    "list_stages",
    "reassemble",
    "verify",
]

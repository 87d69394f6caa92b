"""Runs a model over images in batches, on a GPU if there is one, and never twice for a batch.

    pip install torch
    python examples/gpu_stage.py                     # end it with kill -9, then run it again

The model is loaded once in each worker. What it returned is recorded before the next stage sees it,
so a run that was killed goes on where it was. On Spark, each worker gets a GPU of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

SIDE = 32
CLASSES = 10


class Classify(hr.Operator):
    """Adds the likeliest class of each image, and how sure the model is."""

    version = "1"  # of the weights: change it to classify again
    schema = "id long, label int, score float, device string"

    def setup(self) -> None:
        import torch

        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(7)  # a stand-in for weights from a file
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(16, CLASSES),
        ).to(self.device)
        self.model.eval()

    def process(self, batch: pa.RecordBatch) -> dict[str, Any]:
        pixels = np.frombuffer(b"".join(batch["image"].to_pylist()), np.uint8)
        images = self.torch.tensor(pixels, device=self.device).float().div(255)
        with self.torch.inference_mode():
            answer = self.model(images.reshape(-1, 3, SIDE, SIDE)).softmax(1).max(1)
        return {
            "id": batch["id"],
            "label": answer.indices.cpu().numpy().astype(np.int32),
            "score": answer.values.cpu().numpy(),
            "device": [self.device] * batch.num_rows,
        }


def images(count: int) -> pa.Table:
    """Return images of noise."""
    noise = np.random.default_rng(7).integers(0, 256, (count, 3 * SIDE * SIDE), np.uint8)
    return pa.table({"id": range(count), "image": [each.tobytes() for each in noise]})


def build(workspace: hr.Workspace, count: int, gpus: int) -> hr.Pipeline:
    return (
        hr.pipeline("labels", workspace)
        .source(images(count), rows_per_unit=256)
        .map_batches(
            Classify,
            name="classify",
            batch_size=64,
            expensive=True,
            workers=max(1, gpus),
            resources={"gpu": 1} if gpus else {},
        )
        .filter(lambda batch: pc.greater(batch["score"], 0.05), name="sure")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("gpu-stage-data"))
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--spark", action="store_true", help="run the workers as Spark tasks")
    given = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("gpu_stage.py needs PyTorch, which is not installed; run `pip install torch`")
    import torch

    with hr.open(given.directory) as workspace:
        labels = build(workspace, given.images, torch.cuda.device_count())
        summary = labels.run(hr.spark.session() if given.spark else None)
        classified = summary.stages["classify"]
        print(f"{classified.calls} batches classified in this run, {classified.reused} avoided")
        found = labels.collect()
        devices = ", ".join(found["device"].unique().to_pylist())
        print(f"{found.num_rows} images labelled on {devices}")


if __name__ == "__main__":
    main()

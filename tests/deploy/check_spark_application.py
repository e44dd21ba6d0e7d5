"""Reads SparkApplications as JSON and prints fields that the Spark operator does not know. Needs its models."""

from __future__ import annotations

import json
import sys
from typing import Any

from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication


def unknown(given: Any, understood: Any, path: str = "") -> list[str]:
    """Paths of the values that change when the models parse them."""
    if isinstance(given, dict) and isinstance(understood, dict):
        return [found for key, value in given.items() for found in unknown(value, understood.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(understood, list) and len(given) == len(understood):
        pairs = enumerate(zip(given, understood, strict=True))
        return [found for index, (one, other) in pairs for found in unknown(one, other, f"{path}[{index}]")]
    return [] if given == understood else [path]


for document in json.load(sys.stdin):
    model = SparkV1beta2SparkApplication.from_dict(document)
    for path in unknown(document, model.to_dict()):
        print(f"{document['metadata']['name']}: {path}")

"""The configuration: one typed tree. YAML, dotted overrides and Python keywords in; resolved YAML out."""

from rayfl.config.arrive import ArriveConfig
from rayfl.config.callbacks import CallbackConfig
from rayfl.config.client import EvaluateConfig, LocalConfig, ParticipationConfig
from rayfl.config.data import DATA, DataConfig
from rayfl.config.loading import data_config, describe_errors, load_config, parsed_overrides, partition_config
from rayfl.config.method import MethodConfig, ModelConfig
from rayfl.config.partition import ALPHAS, MOST_COPIES, PARTITIONS, PartitionConfig
from rayfl.config.placement import ModelsToSave, OutputConfig, RayConfig, StateConfig, Training
from rayfl.config.schema import Config
from rayfl.config.section import MOST, Section, dotted_keys

__all__ = [
    "ALPHAS",
    "DATA",
    "MOST",
    "MOST_COPIES",
    "PARTITIONS",
    "ArriveConfig",
    "CallbackConfig",
    "Config",
    "DataConfig",
    "EvaluateConfig",
    "LocalConfig",
    "MethodConfig",
    "ModelConfig",
    "ModelsToSave",
    "OutputConfig",
    "ParticipationConfig",
    "PartitionConfig",
    "RayConfig",
    "Section",
    "StateConfig",
    "Training",
    "data_config",
    "describe_errors",
    "dotted_keys",
    "load_config",
    "parsed_overrides",
    "partition_config",
]

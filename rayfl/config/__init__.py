"""The configuration: one typed tree. YAML, dotted overrides and Python keywords in; resolved YAML out."""

from rayfl.config.callbacks import CallbackConfig
from rayfl.config.client import EvaluateConfig, LocalConfig, ParticipationConfig
from rayfl.config.data import DataConfig, Source
from rayfl.config.loading import describe_errors, load_config, parsed_overrides
from rayfl.config.method import MethodConfig, ModelConfig
from rayfl.config.partition import ALPHAS, MOST_COPIES, PARTITION_KEYS, PartitionConfig, PartitionKind
from rayfl.config.placement import ModelsToSave, OutputConfig, RayConfig, StateConfig, Training
from rayfl.config.schema import Config
from rayfl.config.section import MOST, Section

__all__ = [
    "ALPHAS",
    "MOST",
    "MOST_COPIES",
    "PARTITION_KEYS",
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
    "PartitionKind",
    "RayConfig",
    "Section",
    "Source",
    "StateConfig",
    "Training",
    "describe_errors",
    "load_config",
    "parsed_overrides",
]

"""What all parts of the configuration have in common."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Section(BaseModel):
    """A part of the configuration: unknown keys are mistakes, and keys are in camel case."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_enum_values=False,
        allow_inf_nan=False,  # YAML has both, and no time or rate is one
    )

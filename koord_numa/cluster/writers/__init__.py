"""The ports through which the engine writes."""

"""API objects before they are read: their text, and JSON that is nested too deeply for the fast decoder."""

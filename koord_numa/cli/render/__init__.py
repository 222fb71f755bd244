"""Text for terminals: columns, paragraphs and tables. Nothing here decides or reads a cluster."""

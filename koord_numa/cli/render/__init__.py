"""Text for terminals: columns, paragraphs and tables. No decisions and no access to a cluster."""

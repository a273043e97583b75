"""What a fleet said, as text, Markdown, a page, and a table that lives while it works."""

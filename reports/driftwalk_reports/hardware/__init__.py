"""A hardware check as text, Markdown and a page."""

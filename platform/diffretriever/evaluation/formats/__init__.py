"""Tables in text and Markdown, and pages in Markdown, LaTeX and HTML."""

"""Models, their versions and what they answer with; knows no protocol."""

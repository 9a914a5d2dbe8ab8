"""How requests are admitted and joined into forward passes; knows no model and no protocol."""

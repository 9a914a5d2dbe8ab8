"""Pages of HTML that people look at: what reports, comparisons and searches found.

A page is made from figures (JSON values) alone, which lie beside it in a file. So everything that a page shows can be
read by a program, too.
"""

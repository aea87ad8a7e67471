"""A play for somebody who has never seen this project, one for each vendor."""

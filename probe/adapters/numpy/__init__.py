"""A small framework of numpy alone: the second adapter, without which nothing would show what is general."""

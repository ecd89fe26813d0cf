"""What a recording holds, and what it cannot show."""

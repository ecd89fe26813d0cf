"""What a finding is likely to come from. Nothing here changes a verdict."""

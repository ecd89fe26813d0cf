"""Who answers for a difference."""

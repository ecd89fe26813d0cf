"""What is known of a step while it is walked: the ledger of verdicts and findings, and what each phase leaves for the next."""

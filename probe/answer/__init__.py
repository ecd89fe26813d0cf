"""What a comparison answers: verdict, findings, tensors, coverage, and what they rest on."""

"""A GPTModel of megatron-core on several ranks against one process: clean layouts, and faults of parallel code."""

"""One to many: packed weights, bundles of modules, padded vocabularies, shards."""

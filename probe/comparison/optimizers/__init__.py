"""What the optimizers of two runs did, by the recorded numbers: which hyper-parameter differs, whatever the settings say."""

"""Log-probs of given tokens, and what makes a pass over them cheaper.

What is patched in a model of transformers, and what that gains on a CPU (`benchmarks/patches.py`, on a Zen 4):

    onednn.py        float32 linear layers by oneDNN, where MKL is slow      an update 1.65 ×
    packed.py        tokens that rollouts share, once                        an update 1.37 ×
    last_layer.py    the last layer where it is read; tiny models            an update 1.10 to 1.39 ×
    casting.py       weights made ready once for a batch of rollouts         a decoding step 1.30 ×, in bf16 1.73 ×
    logprobs.py      logits only where a sampled token is predicted          an update 1.15 ×, and memory

and on a GPU (docs/decisions.md):

    sampler/flash.py                  keys read in place, and CUDA graphs    a decoding step 10.0 to 4.1 ms
    support.avoid_cudnn_attention     attention never runs in cuDNN          a training step 4.85 to 2.79 s
"""

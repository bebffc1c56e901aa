//! The embedded engine: a decoder with LoRA, real gradients and KV-cache sampling.

//! Custom losses: expressions over logprobs with reverse-mode gradients.

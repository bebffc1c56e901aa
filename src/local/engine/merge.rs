//! A decoder with an adapter added in, tensor by tensor, for whoever writes it down.

use super::config::Config;
use super::gemm::{View, product};
use super::linear::Lora;
use super::lora::Adapter;
use super::matrix::{Matrix, Order};
use super::model::{Layer, Projection, Weights};
use super::peft::fused;

/// Numbers that are widened at a time.
const AT_HAND: usize = 1 << 20;

/// How a kind of file lays tensors out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As transformers reads them.
    HuggingFace,
    /// As llama.cpp reads them: norms as they are used, rows of some families interleaved.
    Gguf,
}

/// A tensor of a merged decoder, under transformers' name.
#[derive(Debug)]
pub(crate) struct MergedTensor<'a> {
    pub(crate) name: String,
    /// The slowest-running dimension first.
    pub(crate) shape: Vec<usize>,
    content: Content<'a>,
}

#[derive(Debug)]
enum Content<'a> {
    Vector(Vec<f32>),
    /// Matrices one below the other, each with its correction.
    Matrices(Vec<(&'a Matrix, Option<Lora<'a>>)>, Order),
}

impl Weights {
    /// Every tensor of the decoder with an adapter added in.
    ///
    /// A head that is the embedding has no tensor of its own, unless the adapter corrects it: a
    /// correction of the head is none of the embedding, so the two part ways.
    pub(crate) fn merged<'a>(
        &'a self,
        adapter: Option<&'a Adapter>,
        layout: Layout,
    ) -> Vec<MergedTensor<'a>> {
        let parts = Parts {
            config: &self.config,
            adapter,
            layout,
        };
        let mut tensors = vec![parts.matrix("model.embed_tokens.weight", &self.embed, None)];
        for (index, layer) in self.layers.iter().enumerate() {
            parts.layer(index, layer, &mut tensors);
        }
        tensors.push(parts.norm("model.norm", &self.norm));
        let correction = adapter.and_then(Adapter::head);
        if self.head.is_some() || correction.is_some() {
            tensors.push(parts.matrix("lm_head.weight", self.head(), correction));
        }
        tensors
    }
}

struct Parts<'a> {
    config: &'a Config,
    adapter: Option<&'a Adapter>,
    layout: Layout,
}

impl<'a> Parts<'a> {
    fn layer(&self, index: usize, layer: &'a Layer, out: &mut Vec<MergedTensor<'a>>) {
        let prefix = format!("model.layers.{index}");
        let norm = |name: &str, weights: &[f32]| self.norm(&format!("{prefix}.{name}"), weights);
        out.push(norm("input_layernorm", &layer.attention_norm));
        let before_mlp = match &layer.after_norms {
            Some(after) => {
                out.push(norm("post_attention_layernorm", &after.attention));
                out.push(norm("post_feedforward_layernorm", &after.mlp));
                "pre_feedforward_layernorm"
            }
            None => "post_attention_layernorm",
        };
        out.push(norm(before_mlp, &layer.mlp_norm));
        if let Some(norms) = &layer.head_norms {
            out.push(norm("self_attn.q_norm", &norms.q));
            out.push(norm("self_attn.k_norm", &norms.k));
        }
        let one = |projection: Projection| {
            let lora = self
                .adapter
                .and_then(|adapter| adapter.projection(index, projection));
            (&layer.projections[projection as usize], lora)
        };
        let fused = fused(self.config);
        for (module, members) in fused {
            let matrices = members.iter().copied().map(one).collect();
            out.push(matrices_of(
                format!("{prefix}.{module}.weight"),
                matrices,
                Order::Plain,
            ));
        }
        for projection in Projection::ALL {
            let order = self.order(projection);
            let path = format!("{prefix}.{}", projection.path());
            if !fused.iter().any(|(_, parts)| parts.contains(&projection)) {
                let matrices = vec![one(projection)];
                out.push(matrices_of(format!("{path}.weight"), matrices, order));
            }
            if let Some(bias) = &layer.biases[projection as usize] {
                let mut values = vec![0.0; bias.len()];
                for (row, value) in bias.iter().enumerate() {
                    values[order.place(row)] = *value;
                }
                out.push(vector(format!("{path}.bias"), values));
            }
        }
    }

    /// The order of a projection's rows in the file.
    fn order(&self, projection: Projection) -> Order {
        let turned = self.layout == Layout::Gguf
            && self.config.family.gguf_interleaved
            && matches!(projection, Projection::Q | Projection::K);
        match turned {
            true => Order::Interleaved(self.config.head_dim),
            false => Order::Plain,
        }
    }

    fn norm(&self, name: &str, weights: &[f32]) -> MergedTensor<'a> {
        let from_one = self.layout == Layout::HuggingFace && self.config.family.norms_from_one;
        let offset = if from_one { 1.0 } else { 0.0 };
        let values = weights.iter().map(|weight| weight - offset).collect();
        vector(format!("{name}.weight"), values)
    }

    fn matrix(&self, name: &str, matrix: &'a Matrix, lora: Option<Lora<'a>>) -> MergedTensor<'a> {
        matrices_of(name.to_owned(), vec![(matrix, lora)], Order::Plain)
    }
}

fn vector(name: String, values: Vec<f32>) -> MergedTensor<'static> {
    MergedTensor {
        name,
        shape: vec![values.len()],
        content: Content::Vector(values),
    }
}

fn matrices_of<'a>(
    name: String,
    matrices: Vec<(&'a Matrix, Option<Lora<'a>>)>,
    order: Order,
) -> MergedTensor<'a> {
    let rows = matrices.iter().map(|(matrix, _)| matrix.rows()).sum();
    MergedTensor {
        name,
        shape: vec![rows, matrices[0].0.cols()],
        content: Content::Matrices(matrices, order),
    }
}

impl MergedTensor<'_> {
    /// How many numbers it has.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Hands the numbers over in the file's order, whole rows at a time.
    ///
    /// # Errors
    ///
    /// What `take` gives; nothing more is handed over then.
    pub(crate) fn each<E>(&self, mut take: impl FnMut(&[f32]) -> Result<(), E>) -> Result<(), E> {
        let (matrices, order) = match &self.content {
            Content::Vector(values) => return take(values),
            Content::Matrices(matrices, order) => (matrices, *order),
        };
        let (mut merged, mut turned) = (Vec::new(), Vec::new());
        for (matrix, lora) in matrices {
            let cols = matrix.cols();
            // Rows change places within a head, so heads stay whole.
            let unit = match order {
                Order::Plain => 1,
                Order::Interleaved(dim) => dim,
            };
            let step = (AT_HAND / cols).max(1).next_multiple_of(unit);
            for start in (0..matrix.rows()).step_by(step) {
                let rows = start..matrix.rows().min(start + step);
                merged.resize(rows.len() * cols, 0.0);
                matrix.read_block(rows.clone(), 0..cols, &mut merged);
                if let Some(Lora { a, b, rank, scale }) = *lora {
                    let b = &b[rows.start * rank..rows.end * rank];
                    let (a, b) = (View::new(a, rank, cols), View::new(b, rows.len(), rank));
                    product(scale, b, a, 1.0, &mut merged, cols);
                }
                if order == Order::Plain {
                    take(&merged)?;
                    continue;
                }
                turned.resize(merged.len(), 0.0);
                for (row, values) in merged.chunks_exact(cols).enumerate() {
                    let place = order.place(row) * cols;
                    turned[place..place + cols].copy_from_slice(values);
                }
                take(&turned)?;
            }
        }
        Ok(())
    }
}

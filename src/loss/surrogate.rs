//! The steps around a custom loss that is computed on this side.
//!
//! The service has no such loss, so its gradient is sent as the weights of a cross-entropy
//! loss, `-sum(weights * logprobs)`, whose gradient is then the same.

use std::collections::BTreeMap;

use super::custom::LossValue;
use crate::error::{Error, Result};
use crate::types::{Datum, TensorData};

/// The data of the forward pass: target tokens, and weights as given or zeros.
///
/// # Errors
///
/// If a datum has no target tokens.
pub(crate) fn forward_data(data: &[Datum]) -> Result<Vec<Datum>> {
    each(data, |datum| {
        let targets = target_tokens(datum)?;
        let weights = match datum.input("weights") {
            Some(weights) => weights.clone(),
            None => shaped_like(targets, vec![0.0; targets.len()])?,
        };
        cross_entropy_datum(datum, targets, weights)
    })
}

/// The data of the backward pass: target tokens, and the negative gradient as weights.
///
/// `logprobs` are those the gradients belong to; the weights take their shapes.
///
/// # Errors
///
/// If a datum has no target tokens or no gradient, or one of another size than its logprobs.
pub(crate) fn backward_data(
    data: &[Datum],
    logprobs: &[TensorData],
    gradients: &[Vec<f32>],
) -> Result<Vec<Datum>> {
    let mut pairs = logprobs.iter().zip(gradients);
    each(data, |datum| {
        let targets = target_tokens(datum)?;
        let (logprobs, gradient) = pairs
            .next()
            .ok_or_else(|| Error::invalid("gradients", "is missing for this datum"))?;
        let weights = shaped_like(logprobs, gradient.iter().map(|slope| -slope).collect())
            .map_err(|error| error.within("gradients"))?;
        cross_entropy_datum(datum, targets, weights.sparsify(0))
    })
}

/// Puts the custom loss in the place of the surrogate's, which moves to `surrogate_loss:sum`,
/// and adds the custom metrics. SkyRL 0.3.0 reports no loss of a pass, which is no reason to lose one
/// whose gradients are gathered.
pub(crate) fn finish_metrics(metrics: &mut BTreeMap<String, f64>, value: LossValue) {
    let surrogate = metrics.remove("loss:sum");
    metrics.extend(value.metrics);
    // The loss is what it is, whatever else was given that name.
    metrics.insert("loss:sum".into(), value.loss);
    if let Some(surrogate) = surrogate {
        metrics.insert("surrogate_loss:sum".into(), surrogate);
    }
}

fn each(data: &[Datum], mut f: impl FnMut(&Datum) -> Result<Datum>) -> Result<Vec<Datum>> {
    data.iter()
        .enumerate()
        .map(|(index, datum)| f(datum).map_err(|error| error.within(&format!("data[{index}]"))))
        .collect()
}

fn target_tokens(datum: &Datum) -> Result<&TensorData> {
    datum.input("target_tokens").ok_or_else(|| {
        Error::invalid(
            "loss_fn_inputs.target_tokens",
            "is missing; a custom loss needs to know whose logprobs to compute",
        )
    })
}

/// New numbers where `tensor` has its own.
fn shaped_like(tensor: &TensorData, numbers: Vec<f32>) -> Result<TensorData> {
    let csr = tensor
        .csr()
        .map(|csr| (csr.crow_indices().to_vec(), csr.col_indices().to_vec()));
    TensorData::from_parts(numbers.into(), tensor.shape().map(<[usize]>::to_vec), csr)
}

fn cross_entropy_datum(datum: &Datum, targets: &TensorData, weights: TensorData) -> Result<Datum> {
    let new = Datum::new(datum.model_input())
        .with("target_tokens", targets.clone())
        .with("weights", weights);
    match datum.provenance() {
        None => Ok(new),
        Some(spans) => new.with_provenance(spans.model_input(), spans.loss_fn_inputs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ModelInput, ProvenanceSpan};

    fn datum() -> Datum {
        let spans = [ProvenanceSpan::sampled("s", 0, 2).unwrap()];
        Datum::new(ModelInput::from_ints(vec![1, 2]))
            .with_target_tokens(vec![2, 3])
            .with_advantages(vec![1.0, 1.0])
            .with_provenance(spans.clone(), spans)
            .unwrap()
    }

    #[test]
    fn forward_keeps_targets_weights_and_provenance() {
        let plain = datum();
        let weighted = datum().with_weights(vec![0.5, 1.0]);
        let sent = forward_data(&[plain.clone(), weighted]).unwrap();
        assert_eq!(sent[0].loss_fn_inputs().len(), 2);
        assert_eq!(sent[0].input("target_tokens"), plain.input("target_tokens"));
        assert_eq!(sent[0].input("weights"), Some(&vec![0.0f32, 0.0].into()));
        assert_eq!(sent[1].input("weights"), Some(&vec![0.5f32, 1.0].into()));
        assert_eq!(sent[0].provenance(), plain.provenance());
        assert_eq!(sent[0].model_input(), plain.model_input());
    }

    #[test]
    fn zero_weights_take_the_targets_form() {
        let matrix = TensorData::from_rows(&[vec![1i64, 2], vec![3, 4]]).unwrap();
        let sparse = TensorData::sparse_csr(vec![7i64], vec![0, 0, 1], vec![3], [2, 4]).unwrap();
        for targets in [matrix, sparse] {
            let datum = Datum::new(vec![1, 2]).with("target_tokens", targets.clone());
            let sent = forward_data(&[datum]).unwrap();
            let weights = sent[0].input("weights").unwrap();
            assert_eq!(
                (weights.shape(), weights.csr()),
                (targets.shape(), targets.csr())
            );
        }
    }

    #[test]
    fn targets_are_needed() {
        let error = forward_data(&[datum(), Datum::new(vec![1])]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("invalid data[1].loss_fn_inputs.target_tokens: is missing"),
            "{error}"
        );
    }

    #[test]
    fn backward_sends_the_negative_gradient() {
        let logprobs = [TensorData::from(vec![-1.0f32, -2.0])];
        let sent = backward_data(&[datum()], &logprobs, &[vec![0.25, -1.0]]).unwrap();
        assert_eq!(sent[0].input("weights"), Some(&vec![-0.25f32, 1.0].into()));
        assert_eq!(sent[0].provenance(), datum().provenance());
        assert!(backward_data(&[datum()], &logprobs, &[]).is_err());
        assert!(backward_data(&[datum()], &logprobs, &[vec![1.0]]).is_err());
    }

    #[test]
    fn mostly_zero_matrices_travel_sparse() {
        let logprobs = TensorData::from(vec![0.0f32; 16])
            .with_shape([2, 8])
            .unwrap();
        let mut gradient = vec![0.0; 16];
        gradient[3] = 2.0;
        let sent = backward_data(&[datum()], &[logprobs], &[gradient]).unwrap();
        let weights = sent[0].input("weights").unwrap();
        assert_eq!(weights.as_f32(), Some(&[-2.0][..]));
        assert!(weights.csr().is_some());
    }

    #[test]
    fn the_custom_loss_replaces_the_surrogate() {
        let mut metrics =
            BTreeMap::from([("loss:sum".to_owned(), 9.0), ("tokens:sum".into(), 4.0)]);
        let value = LossValue::new(1.5, Vec::new())
            .with_metric("custom/kl:mean", 0.1)
            .with_metric("loss:sum", 7.0);
        finish_metrics(&mut metrics, value.clone());
        let expected = [
            ("custom/kl:mean".to_owned(), 0.1),
            ("loss:sum".into(), 1.5),
            ("surrogate_loss:sum".into(), 9.0),
            ("tokens:sum".into(), 4.0),
        ];
        assert_eq!(metrics, expected.into());
        let mut metrics = BTreeMap::new();
        finish_metrics(&mut metrics, value);
        let expected = [("custom/kl:mean".to_owned(), 0.1), ("loss:sum".into(), 1.5)];
        assert_eq!(metrics, expected.into());
    }
}

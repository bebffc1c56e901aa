//! Sampling without a server.

use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::local::engine::{Adapter, Base, Batch, Listener, SampleOutput, SampleRequest, builtin};

/// Samples one request and nothing else; texts are bytes.
pub(crate) fn sample(
    base: &Base,
    adapter: Option<&Arc<Adapter>>,
    request: &SampleRequest,
) -> Result<SampleOutput> {
    request.check(base.config())?;
    Ok(sample_all(base, adapter, std::slice::from_ref(request)).remove(0))
}

/// Samples some requests side by side.
pub(crate) fn sample_all(
    base: &Base,
    adapter: Option<&Arc<Adapter>>,
    requests: &[SampleRequest],
) -> Vec<SampleOutput> {
    let ears: Vec<Ear> = requests.iter().map(|_| Ear::default()).collect();
    let mut batch = Batch::new(base, Batch::MEMORY);
    for (request, ear) in requests.iter().zip(&ears) {
        let joined = batch.add(adapter.cloned(), request.clone(), Box::new(ear));
        joined.unwrap();
    }
    base.run(|| {
        while !batch.is_idle() {
            batch.round();
        }
    });
    drop(batch);
    ears.into_iter().map(Ear::output).collect()
}

/// Keeps what it is given in the end.
#[derive(Default)]
struct Ear(Mutex<Option<SampleOutput>>);

impl Ear {
    fn output(self) -> SampleOutput {
        self.0.into_inner().unwrap().unwrap()
    }
}

impl Listener for &Ear {
    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        builtin::decode(tokens)
    }

    fn finish(&self, _: &SampleRequest, output: SampleOutput) {
        *self.0.lock().unwrap() = Some(output);
    }
}

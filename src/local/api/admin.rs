//! The admin route: faults while the server runs.

use super::fault::Fault;
use super::{Answer, Call};
use crate::local::http::{Refusal, Reply};

pub(super) fn add_fault(call: &Call) -> Answer {
    check_on(call)?;
    let fault: Fault = call.json()?;
    call.service.add_fault(fault)?;
    Ok(Reply::empty())
}

pub(super) fn clear_faults(call: &Call) -> Answer {
    check_on(call)?;
    call.service.clear_faults();
    Ok(Reply::empty())
}

fn check_on(call: &Call) -> Result<(), Refusal> {
    if call.service.options.admin {
        return Ok(());
    }
    Err(Refusal::missing("the admin route is off"))
}

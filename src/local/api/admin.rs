//! The admin route: faults while the server runs.

use super::{Answer, json};
use crate::local::api::fault::Fault;
use crate::local::api::service::Service;
use crate::local::http::{Refusal, Reply, Request};

pub(in crate::local) fn add_fault(service: &Service, request: &Request) -> Answer {
    check_on(service)?;
    let fault: Fault = json(request)?;
    service.add_fault(fault)?;
    Ok(Reply::empty())
}

pub(in crate::local) fn clear_faults(service: &Service) -> Answer {
    check_on(service)?;
    service.clear_faults();
    Ok(Reply::empty())
}

fn check_on(service: &Service) -> Result<(), Refusal> {
    if service.admin {
        return Ok(());
    }
    Err(Refusal::missing("the admin route is off"))
}

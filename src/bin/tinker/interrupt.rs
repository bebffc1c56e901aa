//! Ctrl-C and requests to terminate: what is under way ends in order, and the program with 130.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::failure::Exit;

type Hook = Box<dyn FnOnce() + Send>;

static HAPPENED: AtomicBool = AtomicBool::new(false);
static HOOKS: Mutex<Vec<Hook>> = Mutex::new(Vec::new());
/// How many wait for what somebody types.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// Whether Ctrl-C was pressed.
pub(crate) fn happened() -> bool {
    HAPPENED.load(Ordering::SeqCst)
}

/// Has Ctrl-C call this, once, instead of ending the program on the spot: the command then fails
/// by itself, and its files are removed as after any failure. A second Ctrl-C does not wait.
pub(crate) fn on(hook: impl FnOnce() + Send + 'static) {
    hooks(|hooks| hooks.push(Box::new(hook)));
}

fn hooks<T>(change: impl FnOnce(&mut Vec<Hook>) -> T) -> T {
    change(&mut HOOKS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits for what somebody types. Nothing else is under way that would end by itself, so Ctrl-C
/// ends the program.
pub(crate) fn while_asking<T>(read: impl FnOnce() -> T) -> T {
    ASKING.fetch_add(1, Ordering::SeqCst);
    if happened() {
        exit();
    }
    let typed = read();
    ASKING.fetch_sub(1, Ordering::SeqCst);
    typed
}

/// Standard input, which Ctrl-C does not wait for.
pub(crate) struct Typed;

impl Read for Typed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while_asking(|| io::stdin().read(buffer))
    }
}

/// Ends the program as Ctrl-C does.
pub(crate) fn exit() -> ! {
    std::process::exit(Exit::Interrupted as i32)
}

fn pressed() {
    let hooks = hooks(std::mem::take);
    if HAPPENED.swap(true, Ordering::SeqCst) || hooks.is_empty() {
        exit();
    }
    for hook in hooks {
        hook();
    }
    if ASKING.load(Ordering::SeqCst) > 0 {
        say!();
        exit();
    }
}

/// Begins to listen.
#[cfg(unix)]
pub(crate) fn listen() -> anyhow::Result<()> {
    use std::os::unix::net::UnixStream;

    use signal_hook::consts::{SIGINT, SIGTERM};

    let (mut wake, sender) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGINT, sender.try_clone()?)?;
    // Whoever shuts the machine down wishes no less order.
    signal_hook::low_level::pipe::register(SIGTERM, sender)?;
    std::thread::Builder::new()
        .name("tinker-interrupt".into())
        .stack_size(128 << 10)
        .spawn(move || {
            while wake.read_exact(&mut [0]).is_ok() {
                pressed();
            }
        })?;
    Ok(())
}

/// Elsewhere the console's default handler ends the process.
#[cfg(not(unix))]
pub(crate) fn listen() -> anyhow::Result<()> {
    let _ = pressed;
    Ok(())
}

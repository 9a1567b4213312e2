//! Shows on a terminal how the control plane's binaries are built.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use exuvia_testenv::assets::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::remark;

/// A bar for each binary that Go builds; lines where standard error is not a terminal.
pub fn on_terminal() -> impl Fn(Progress<'_>) + Send + Sync + 'static {
    let bar: Mutex<Option<ProgressBar>> = Mutex::new(None);
    let style = ProgressStyle::with_template("  {msg:28} [{bar:30}] {pos}/{len} packages, {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    move |progress| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        match progress {
            Progress::Waiting { binary } => {
                remark(&format!("  waiting for another process that builds {binary}"));
            }
            Progress::Started {
                binary,
                version,
                packages,
            } => {
                if !std::io::stderr().is_terminal() {
                    remark(&format!(
                        "  building {binary} {version} with go, once ({packages} packages)"
                    ));
                }
                let new = ProgressBar::new(packages as u64).with_style(style.clone());
                new.set_message(format!("{binary} {version}"));
                new.enable_steady_tick(Duration::from_secs(1));
                *bar = Some(new);
            }
            Progress::Compiling { done, .. } => {
                if let Some(bar) = &*bar {
                    bar.set_position(done as u64);
                }
            }
            Progress::Finished { .. } => {
                if let Some(bar) = bar.take() {
                    bar.finish();
                }
            }
            _ => {}
        }
    }
}

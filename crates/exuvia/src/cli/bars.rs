//! What a migration is busy with, on standard error.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use exuvia_storage::Activity;
use exuvia_storage::counted;
use exuvia_storage::droppable::Looking;
use exuvia_storage::protocol::StepKind;
use exuvia_storage::references::Extent;
use exuvia_sweep::Progress;
use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};
use tokio::sync::watch;

use super::output::remark;

/// Bars on a terminal; elsewhere a line at each stage, so that a log shows why it takes a minute.
///
/// Several migrations at once share `bars`.
pub(super) fn show(name: String, bars: &MultiProgress) -> impl Fn(Activity) + Send + Sync + 'static {
    let bars = bars.clone();
    let bar: Mutex<Option<ProgressBar>> = Mutex::new(None);
    let last_stage = Mutex::new(None);
    move |activity| {
        if activity.step == StepKind::Begin {
            return; // it takes no time
        }
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = activity.left
            && let Some(shown) = bar.as_ref().filter(|bar| bar.length().is_none())
        {
            shown.set_message(settling(&name, left));
            return;
        }
        if !std::io::stderr().is_terminal() {
            // A wait is reported repeatedly, with less time left; its first line is enough.
            let stage = Some(activity.step);
            let mut last = last_stage.lock().unwrap_or_else(PoisonError::into_inner);
            if *last != stage {
                remark(&line(&name, &activity));
                *last = stage;
            }
            return;
        }
        if let Some(last) = bar.take() {
            last.finish_and_clear();
        }
        let said = line(&name, &activity);
        *bar = Some(match activity.progress {
            None => spinner(&bars, said),
            Some(progress) => show_progress(&bars, said, progress),
        });
    }
}

/// What a look at a whole cluster is busy with: a spinner on a terminal, nothing elsewhere.
pub(super) fn looking() -> impl Fn(Looking) + Send + Sync + 'static {
    let bar = spinner_on_terminal();
    move |at| {
        let message = match at {
            Looking::Objects(crd) => format!("{crd}: looking at objects"),
            Looking::References(extent) => through(extent, "looking for ownerReferences"),
            Looking::Usage(Some(watch)) => format!("counting requests for {} s", watch.as_secs_f64()),
            Looking::Usage(None) => "asking API servers for their counters".to_owned(),
        };
        tracing::debug!("{message}");
        bar.set_message(message);
    }
}

/// Counts CRDs that are looked at, to show progress.
pub(super) struct CrdProgress {
    bar: ProgressBar,
    found: AtomicUsize,
    done: AtomicUsize,
}

/// A spinner on a terminal, nothing elsewhere.
pub(super) fn crd_progress() -> CrdProgress {
    CrdProgress {
        bar: spinner_on_terminal(),
        ..CrdProgress::silent()
    }
}

impl CrdProgress {
    /// One that is not shown.
    pub(super) fn silent() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            found: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }

    /// More CRDs are to be looked at.
    pub(super) fn found(&self, crds: usize) {
        self.found.fetch_add(crds, Ordering::Relaxed);
        self.show();
    }

    /// One more is done.
    pub(super) fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.show();
    }

    fn show(&self) {
        let (done, found) = (
            self.done.load(Ordering::Relaxed),
            self.found.load(Ordering::Relaxed),
        );
        self.bar
            .set_message(format!("looking at CRDs: {done} of {found}"));
    }
}

/// How far a walk through every object in the cluster is.
pub(super) fn walking(what: &'static str) -> impl Fn(Extent) + Send + Sync + 'static {
    let bar = spinner_on_terminal();
    move |extent| bar.set_message(through(extent, what))
}

fn through(extent: Extent, what: &str) -> String {
    let (done, objects) = (extent.done, counted(extent.objects, "object"));
    format!(
        "{what}: {done} of {}, {objects}",
        counted(extent.resources as u64, "resource")
    )
}

/// A spinner that disappears when it is dropped.
fn spinner_on_terminal() -> ProgressBar {
    if std::io::stderr().is_terminal() {
        spinner(&MultiProgress::new(), String::new()).with_finish(indicatif::ProgressFinish::AndClear)
    } else {
        ProgressBar::hidden()
    }
}

fn line(name: &str, activity: &Activity) -> String {
    match activity.left {
        Some(left) => settling(name, left),
        None => format!("{name}: {}", activity.step.doing()),
    }
}

fn settling(name: &str, left: Duration) -> String {
    format!(
        "{name}: waiting {:.0} s for API servers to catch up",
        left.as_secs_f64().ceil()
    )
}

fn spinner(bars: &MultiProgress, message: String) -> ProgressBar {
    let bar = bars
        .add(ProgressBar::new_spinner())
        .with_finish(ProgressFinish::AndClear)
        .with_message(message);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn show_progress(bars: &MultiProgress, said: String, mut progress: watch::Receiver<Progress>) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {prefix}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    let bar = bars
        .add(ProgressBar::new(0))
        .with_finish(ProgressFinish::AndClear)
        .with_style(style)
        .with_message(said);
    let shown = bar.clone();
    tokio::spawn(async move {
        while progress.changed().await.is_ok() {
            let now = progress.borrow_and_update().clone();
            shown.set_length(now.total.unwrap_or_default().max(now.done()));
            shown.set_position(now.done());
            let eta = now
                .eta
                .map(|eta| format!(", {} s left", eta.as_secs()))
                .unwrap_or_default();
            shown.set_prefix(format!("{:.0}/s, {} at once{eta}", now.rate, now.concurrency));
        }
    });
    bar
}

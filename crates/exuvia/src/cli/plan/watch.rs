//! `exuvia plan --watch`: looks again and again. A terminal is drawn over, a pipe gets what changed.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::round::{Entry, Round, table};
use super::{PlanArgs, PlanFormat, Target, noted, tell};

use crate::cli::bars::CrdProgress;
use crate::cli::output::{reader_gone, say_while_read, seconds};
use crate::cli::table::{over_the_last, screen_width};

/// A CRD of a cluster, or the cluster itself.
type Key = (Option<String>, Option<String>);

/// Looks until a signal comes, or until the reader of its output has gone away, as after `| head -1`.
pub(super) async fn run(targets: &[Target], args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut stop = std::pin::pin!(async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
            () = reader_gone() => {}
        }
    });
    let redraws = args.output.is_for_people() && std::io::stdout().is_terminal();
    let quiet = CrdProgress::silent();
    let mut known: Option<Known> = None;
    let mut code = ExitCode::SUCCESS;
    loop {
        // A first look that fails is an error; a later one may fail and the cluster come back.
        let tolerant = args.several() || known.is_some();
        let round = tokio::select! {
            round = Round::look(targets, args, tolerant, &quiet) => round?,
            () = &mut stop => break,
        };
        code = round.exit_code();
        let is_first = known.is_none();
        let change = known.get_or_insert_default().take(&round);
        let text = if redraws {
            drawn(&round, args, is_first)
        } else if is_first {
            tell(&round.notes);
            let text = || round.text(args, screen_width());
            document(args.output.format().text(&round.answers(), text)?, args)
        } else {
            change.text(args)?
        };
        if !text.is_empty() && !say_while_read(&text)? {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(args.interval) => {}
            () = &mut stop => break,
        }
    }
    if redraws {
        say_while_read("\n")?; // the shell's prompt does not follow the `^C` that the terminal shows
    }
    Ok(code)
}

/// The whole screen, drawn over the last one.
fn drawn(round: &Round, args: &PlanArgs, is_first: bool) -> String {
    let every = args.interval.as_secs_f64();
    let head = format!(
        "exuvia plan at {}, every {every} s; Ctrl-C ends it\n\n",
        seconds(Timestamp::now())
    );
    let screen = screen_width();
    let text = head + &round.text(args, screen) + &noted(&round.notes, screen);
    over_the_last(&text, is_first, "make the window larger, or use --groups")
}

/// YAML needs a mark between documents; the rest does not.
fn document(text: String, args: &PlanArgs) -> String {
    match args.output {
        PlanFormat::Yaml => format!("---\n{text}"),
        _ => text,
    }
}

/// What was last said of everything.
#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<Key, Value>,
}

/// What is different from what was last said.
#[derive(Debug)]
struct Change<'a> {
    changed: Vec<&'a Entry>,
    gone: Vec<Key>,
}

impl Known {
    /// Takes note of a round. What belongs to a cluster that could not be looked at is neither changed nor gone.
    fn take<'a>(&mut self, round: &'a Round) -> Change<'a> {
        let mut now: BTreeMap<Key, (Value, &'a Entry)> = BTreeMap::new();
        for entry in &round.entries {
            let value = serde_json::to_value(entry).unwrap_or_default();
            now.insert(key(entry), (value, entry));
        }
        let failed: Vec<Option<String>> = round
            .entries
            .iter()
            .filter(|entry| matches!(entry, Entry::Failed { .. }))
            .map(|entry| key(entry).0)
            .collect();
        let is_gone = |key: &&Key| !now.contains_key(*key) && (key.1.is_none() || !failed.contains(&key.0));
        let mut gone: Vec<Key> = self.entries.keys().filter(is_gone).cloned().collect();
        // A cluster that has CRDs again is reported by its CRDs.
        gone.retain(|key| {
            self.entries
                .remove(key)
                .is_some_and(|said| key.1.is_some() || said.get("error").is_some())
        });
        let mut changed = Vec::new();
        for (key, (value, entry)) in now {
            if self.entries.get(&key) != Some(&value) {
                self.entries.insert(key, value);
                changed.push(entry);
            }
        }
        Change { changed, gone }
    }
}

impl Change<'_> {
    /// Nothing, if nothing is different.
    fn text(&self, args: &PlanArgs) -> anyhow::Result<String> {
        if self.changed.is_empty() && self.gone.is_empty() {
            return Ok(String::new());
        }
        let mut values: Vec<Value> = Vec::new();
        for entry in &self.changed {
            values.push(serde_json::to_value(entry)?);
        }
        for (context, crd) in &self.gone {
            let mut value = if crd.is_some() {
                json!({"gone": true})
            } else {
                json!({"answers": true})
            };
            for (name, said) in [("context", context), ("crd", crd)] {
                if let Some(said) = said {
                    value[name] = json!(said);
                }
            }
            values.push(value);
        }
        let text = args.output.format().text(&values, || {
            let mut text = format!("\nat {}\n", seconds(Timestamp::now()));
            if !self.changed.is_empty() {
                text.push_str(&table(&self.changed, args).render(screen_width()));
            }
            for key in &self.gone {
                text.push_str(&match key {
                    (None, Some(crd)) => format!("{crd} is gone\n"),
                    (Some(context), Some(crd)) => format!("{context}: {crd} is gone\n"),
                    (Some(context), None) => format!("{context} answers again\n"),
                    (None, None) => "the cluster answers again\n".to_owned(),
                });
            }
            text
        })?;
        Ok(document(text, args))
    }
}

fn key(entry: &Entry) -> Key {
    match entry {
        Entry::Crd(line) => (line.context.clone(), Some(line.crd.clone())),
        Entry::Failed { context, .. } => (context.clone(), None),
        Entry::Empty { context, .. } => (Some(context.clone()), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(context: &str) -> Entry {
        Entry::Failed {
            context: Some(context.into()),
            error: "down".into(),
        }
    }

    fn empty(context: &str) -> Entry {
        Entry::Empty {
            context: context.into(),
            why: "this cluster has no CRDs".into(),
        }
    }

    fn round(entries: Vec<Entry>) -> Round {
        Round {
            entries,
            ..Round::default()
        }
    }

    #[test]
    fn what_did_not_change_is_not_said_again() {
        let mut known = Known::default();
        let first = round(vec![empty("east"), failed("west")]);
        assert_eq!(known.take(&first).changed.len(), 2);
        let change = known.take(&first);
        assert!(change.changed.is_empty() && change.gone.is_empty());
        let second = round(vec![empty("east"), empty("west")]);
        assert_eq!(known.take(&second).changed.len(), 1, "west is back");
    }

    #[test]
    fn what_belongs_to_a_cluster_that_is_down_is_not_gone() {
        let mut known = Known::default();
        let of_west: Key = (Some("west".into()), Some("widgets.example.com".into()));
        known.entries.insert(of_west.clone(), json!({}));
        assert!(known.take(&round(vec![failed("west")])).gone.is_empty());
        let change = round(vec![empty("west")]);
        assert_eq!(known.take(&change).gone, [of_west]);
    }
}

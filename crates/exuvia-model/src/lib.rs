//! Goes through every state of a small model of a protocol, and finds out what each mistake leads to.
//!
//! A state that was met is remembered by a hash of 64 bits: among ten million states, one is missed with a probability of
//! three in a million.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;

/// A process and its world. An `Err` says what went wrong.
pub trait Model {
    /// The world, and what the process knows of it.
    type State: Clone + PartialEq + Hash + Debug;
    /// A way to do it wrong that must be noticed.
    type Mistake: Copy;

    /// One state of so many is asked whether it [`ends`](Self::ends): whatever keeps it from ending shows in many.
    const ENDS_EVERY: usize;

    /// What the process may do next. The first state is the one in which it goes well.
    fn process(state: &Self::State, mistake: Option<Self::Mistake>) -> Result<Vec<Self::State>, String>;

    /// What everybody else may do.
    fn others(state: &Self::State) -> Result<Vec<Self::State>, String>;

    /// Which step the process begins here; `None` if it waits, or is in the middle of one.
    fn decision(state: &Self::State) -> Option<String>;

    /// From here, if nothing else happens, the process comes to an end.
    fn ends(state: &Self::State, mistake: Option<Self::Mistake>) -> Result<(), String>;

    /// What must hold in every state.
    fn holds(_: &Self::State) -> Result<(), String> {
        Ok(())
    }

    /// What must come of a world if nothing happens in it.
    fn completes(_: &Self::State, _: Option<Self::Mistake>) -> Result<(), String> {
        Ok(())
    }

    /// The same state with everything forgotten that makes no difference any more, so that it is gone through once.
    fn in_short(state: Self::State) -> Self::State {
        state
    }
}

/// Goes through every state that can be reached. Returns their number, or the first thing that went wrong.
pub fn explore<M: Model>(world: M::State) -> Result<usize, String> {
    M::completes(&world, None)?;
    let mut states = States::<M>::default();
    states.meet(vec![world]);
    while let Some(state) = states.next() {
        states.checked(&state, None)?;
        let after = after::<M>(&state, None)?;
        if states.looked_at.is_multiple_of(M::ENDS_EVERY) {
            for state in &after {
                forgets_nothing_that_matters::<M>(state)?;
            }
        }
        states.meet(after);
    }
    Ok(states.met.len())
}

/// What is decided in a state [in short](Model::in_short) is what is decided in the state itself. Otherwise parts of the model are never
/// gone through, and nobody notices.
fn forgets_nothing_that_matters<M: Model>(state: &M::State) -> Result<(), String> {
    let in_short = M::in_short(state.clone());
    let (long, short) = (M::decision(state), M::decision(&in_short));
    if long.is_none() || long == short {
        return Ok(());
    }
    Err(format!(
        "in short it decides differently: {long:?} in {state:?}, {short:?} in {in_short:?}"
    ))
}

/// What each mistake leads to in the first of these worlds that shows it, which are safe without it; `None` if nothing does.
///
/// Until a mistake makes a difference everything goes as it does without it. So each world is gone through once for all
/// mistakes, and what a mistake leads to is looked for behind those states only in which it makes one.
pub fn consequences<M: Model>(
    worlds: impl IntoIterator<Item = M::State>,
    mistakes: &[M::Mistake],
) -> Vec<Option<String>> {
    let mut found: Vec<Option<String>> = vec![None; mistakes.len()];
    let mut begun = Vec::new();
    for world in worlds {
        if begun.contains(&world) {
            continue;
        }
        begun.push(world.clone());
        let open = (0..mistakes.len()).filter(|index| found[*index].is_none());
        let suspects: Vec<_> = open.map(|index| Suspect::new(index, mistakes[index])).collect();
        if suspects.is_empty() {
            break;
        }
        for (index, what) in noticed::<M>(world, suspects) {
            found[index] = Some(what);
        }
    }
    found
}

/// A mistake that nothing was found of yet.
struct Suspect<M: Model> {
    index: usize,
    mistake: M::Mistake,
    /// States that only this mistake leads to, and those in which it makes a difference.
    states: States<M>,
}

impl<M: Model> Suspect<M> {
    fn new(index: usize, mistake: M::Mistake) -> Self {
        Self {
            index,
            mistake,
            states: States::default(),
        }
    }

    /// Looks at this state if the mistake makes a difference in it, and goes a little further behind those that were met.
    fn goes_on(&mut self, state: &M::State, right: &[M::State], known: &States<M>) -> Result<(), String> {
        if M::process(state, Some(self.mistake))? != right {
            self.states.meet(vec![state.clone()]);
        }
        // More than one, so that its queue does not grow all the time.
        for _ in 0..2 {
            self.one_more(known)?;
        }
        Ok(())
    }

    /// Whether there was one more.
    fn one_more(&mut self, known: &States<M>) -> Result<bool, String> {
        let Some(state) = self.states.next() else {
            return Ok(false);
        };
        self.states.checked(&state, Some(self.mistake))?;
        let mut after = after::<M>(&state, Some(self.mistake))?;
        // What is reached without the mistake is looked at there.
        after.retain(|state| !known.knows(state));
        self.states.meet(after);
        Ok(true)
    }
}

/// Goes through a world without any mistake, and looks at each state for those that would make a difference in it.
fn noticed<M: Model>(world: M::State, mut suspects: Vec<Suspect<M>>) -> Vec<(usize, String)> {
    let mut noticed = Vec::new();
    look(&mut suspects, &mut noticed, |suspect| {
        M::completes(&world, Some(suspect.mistake))
    });
    let mut states = States::<M>::default();
    states.meet(vec![world]);
    while let Some(state) = states.next().filter(|_| !suspects.is_empty()) {
        let right = M::process(&state, None).expect("without a mistake it is safe");
        look(&mut suspects, &mut noticed, |suspect| {
            suspect.goes_on(&state, &right, &states)
        });
        states.meet(right);
        states.meet(M::others(&state).expect("without a mistake it is safe"));
    }
    look(&mut suspects, &mut noticed, |suspect| {
        while suspect.one_more(&states)? {}
        Ok(())
    });
    noticed
}

/// Those of which something is found are not looked at any more.
fn look<M: Model>(
    suspects: &mut Vec<Suspect<M>>,
    noticed: &mut Vec<(usize, String)>,
    mut at: impl FnMut(&mut Suspect<M>) -> Result<(), String>,
) {
    suspects.retain_mut(|suspect| {
        let found = at(suspect).err();
        let is_unnoticed = found.is_none();
        noticed.extend(found.map(|what| (suspect.index, what)));
        is_unnoticed
    });
}

/// The states that were met, and those of them that were not looked at yet.
struct States<M: Model> {
    met: HashSet<u64, FixedState>,
    queue: VecDeque<M::State>,
    looked_at: usize,
}

impl<M: Model> Default for States<M> {
    fn default() -> Self {
        Self {
            met: HashSet::default(),
            queue: VecDeque::new(),
            looked_at: 0,
        }
    }
}

fn fingerprint(state: &impl Hash) -> u64 {
    FixedState::default().hash_one(state)
}

impl<M: Model> States<M> {
    fn meet(&mut self, states: Vec<M::State>) {
        for state in states {
            let state = M::in_short(state);
            if self.met.insert(fingerprint(&state)) {
                self.queue.push_back(state);
            }
        }
    }

    fn knows(&self, state: &M::State) -> bool {
        self.met.contains(&fingerprint(&M::in_short(state.clone())))
    }

    fn next(&mut self) -> Option<M::State> {
        self.queue.pop_front()
    }

    /// Nothing is wrong in this state.
    fn checked(&mut self, state: &M::State, mistake: Option<M::Mistake>) -> Result<(), String> {
        let say = |what: String| format!("{what}; after {state:?}");
        M::holds(state).map_err(say)?;
        if self.looked_at.is_multiple_of(M::ENDS_EVERY) {
            M::ends(state, mistake).map_err(say)?;
        }
        self.looked_at += 1;
        Ok(())
    }
}

/// Everything that may come after a state.
fn after<M: Model>(state: &M::State, mistake: Option<M::Mistake>) -> Result<Vec<M::State>, String> {
    let say = |what: String| format!("{what}; after {state:?}");
    let mut after = M::process(state, mistake).map_err(say)?;
    after.extend(M::others(state).map_err(say)?);
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that counts to three, two at a time if it forgets to look; somebody may take one away, once.
    struct Counter;

    #[derive(Clone, Copy)]
    enum Mistake {
        JumpsOverTheEnd,
        NeverStops,
        Harmless,
    }

    /// How far it is, and how often somebody may interfere.
    type State = (u8, u8);

    impl Model for Counter {
        type State = State;
        type Mistake = Mistake;
        const ENDS_EVERY: usize = 1;

        fn process(&(count, events): &State, mistake: Option<Mistake>) -> Result<Vec<State>, String> {
            let next = match mistake {
                Some(Mistake::JumpsOverTheEnd) if count == 2 => 4,
                Some(Mistake::NeverStops) if count == 3 => 0,
                Some(Mistake::Harmless) if count == 0 => 2,
                _ => (count + 1).min(3),
            };
            Ok(vec![(next, events)])
        }

        fn others(&(count, events): &State) -> Result<Vec<State>, String> {
            let interferes = events > 0 && count > 0;
            Ok(interferes.then(|| (count - 1, events - 1)).into_iter().collect())
        }

        fn decision(_: &State) -> Option<String> {
            Some("count".into())
        }

        fn ends(state: &State, mistake: Option<Mistake>) -> Result<(), String> {
            let mut state = *state;
            for _ in 0..10 {
                let after = Self::process(&state, mistake)?[0];
                if after == state {
                    return Ok(());
                }
                state = after;
            }
            Err("never ends".into())
        }

        fn holds(&(count, _): &State) -> Result<(), String> {
            if count > 3 { Err("too far".into()) } else { Ok(()) }
        }
    }

    #[test]
    fn every_state_is_gone_through_once() {
        assert_eq!(explore::<Counter>((0, 0)), Ok(4));
        assert_eq!(explore::<Counter>((0, 1)), Ok(8));
    }

    #[test]
    fn a_mistake_is_noticed_by_what_it_leads_to_and_a_harmless_one_is_not() {
        let mistakes = [Mistake::JumpsOverTheEnd, Mistake::Harmless, Mistake::NeverStops];
        let found = consequences::<Counter>([(0, 0), (0, 1)], &mistakes);
        let brief = |found: &Option<String>| {
            found
                .as_ref()
                .map(|found| found.split(';').next().unwrap_or("").to_owned())
        };
        let found: Vec<_> = found.iter().map(brief).collect();
        assert_eq!(found, [Some("too far".into()), None, Some("never ends".into())]);
    }

    #[test]
    fn a_short_form_that_forgets_too_much_is_noticed() {
        /// It decides by what is left out.
        struct Forgetful;
        impl Model for Forgetful {
            type State = State;
            type Mistake = ();
            const ENDS_EVERY: usize = 1;

            fn process(&(count, events): &State, _: Option<()>) -> Result<Vec<State>, String> {
                Ok(vec![(count, (events + 1).min(3))])
            }

            fn others(_: &State) -> Result<Vec<State>, String> {
                Ok(Vec::new())
            }

            fn decision(&(_, events): &State) -> Option<String> {
                Some(format!("step {events}"))
            }

            fn ends(_: &State, _: Option<()>) -> Result<(), String> {
                Ok(())
            }

            fn in_short((count, _): State) -> State {
                (count, 0)
            }
        }
        let wrong = explore::<Forgetful>((0, 0)).expect_err("it is noticed");
        assert!(wrong.starts_with("in short it decides differently"), "{wrong}");
    }

    #[test]
    fn a_mistake_that_needs_somebody_to_interfere_shows_in_the_world_where_somebody_does() {
        /// It goes wrong at one, if somebody has taken one away.
        struct Jealous;
        impl Model for Jealous {
            type State = State;
            type Mistake = ();
            const ENDS_EVERY: usize = 1;

            fn process(&(count, events): &State, mistake: Option<()>) -> Result<Vec<State>, String> {
                if mistake.is_some() && count == 1 && events == 0 {
                    return Err("went wrong".into());
                }
                Counter::process(&(count, events), None)
            }

            fn others(state: &State) -> Result<Vec<State>, String> {
                Counter::others(state)
            }

            fn decision(state: &State) -> Option<String> {
                Counter::decision(state)
            }

            fn ends(_: &State, _: Option<()>) -> Result<(), String> {
                Ok(())
            }
        }
        assert_eq!(consequences::<Jealous>([(2, 0)], &[()]), [None]);
        let found = consequences::<Jealous>([(2, 0), (2, 1)], &[()]);
        assert_eq!(found, [Some("went wrong".to_owned())]);
    }
}

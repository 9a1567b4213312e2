//! What a watch has shown, to tell what vanished between two lists.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
};

use exuvia_sweep::Identity;
use kube::Resource;

use crate::Seen;

/// Turns what lists and watches show into [`Seen`]. Of each object it keeps namespace, name and uid.
pub(crate) struct Book<K, F: FnMut(Seen<K>)> {
    resource: &'static str,
    known: BTreeMap<Name, Known>,
    /// The number of the list that is being read, or was read last.
    list: u64,
    on: F,
    _of: std::marker::PhantomData<fn(K)>,
}

/// Namespace and name.
type Name = (Option<String>, String);

struct Known {
    uid: Option<String>,
    /// The list in which it was last seen, or after which.
    list: u64,
    /// It was `Applied`.
    is_told: bool,
    /// It does not fit its type, and the log says so.
    is_unfit: bool,
}

impl<K: Resource, F: FnMut(Seen<K>)> Book<K, F> {
    pub(crate) fn new(resource: &'static str, on: F) -> Self {
        Self {
            resource,
            known: BTreeMap::new(),
            list: 0,
            on,
            _of: std::marker::PhantomData,
        }
    }

    /// A list begins, or begins again.
    pub(crate) fn begin_list(&mut self) {
        self.list += 1;
    }

    /// The list is complete: what it did not show is gone.
    pub(crate) fn end_list(&mut self) {
        let Self { known, list, on, .. } = self;
        known.retain(|(namespace, name), known| {
            let is_there = known.list == *list;
            if !is_there && known.is_told {
                on(Seen::Deleted(Identity {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    uid: known.uid.take(),
                }));
            }
            is_there
        });
        on(Seen::Synced);
    }

    /// The object is there.
    pub(crate) fn see(&mut self, object: K) {
        let known = self.know(Identity::from(object.meta()));
        known.is_told = true;
        known.is_unfit = false;
        (self.on)(Seen::Applied(object));
    }

    /// The object is there, and does not fit its type.
    pub(crate) fn see_unfit(&mut self, identity: Identity) {
        let resource = self.resource;
        let (namespace, name) = (identity.namespace.clone(), identity.name.clone());
        if !mem::replace(&mut self.know(identity).is_unfit, true) {
            // Not what serde says about it, which quotes the value (PITFALLS B27).
            tracing::warn!(
                resource,
                namespace,
                name,
                "object does not fit its type; ignoring it"
            );
        }
    }

    /// The object is gone.
    pub(crate) fn lose(&mut self, identity: Identity) {
        let name = (identity.namespace.clone(), identity.name.clone());
        if let Entry::Occupied(known) = self.known.entry(name)
            // A list may have shown the next object of that name before the watch shows this one's end.
            && known.get().uid == identity.uid
            && known.remove().is_told
        {
            (self.on)(Seen::Deleted(identity));
        }
    }

    /// Notes that it is there. If another object had that name, that one is gone.
    fn know(&mut self, identity: Identity) -> &mut Known {
        let new = Known {
            uid: identity.uid.clone(),
            list: self.list,
            is_told: false,
            is_unfit: false,
        };
        match self
            .known
            .entry((identity.namespace.clone(), identity.name.clone()))
        {
            Entry::Vacant(vacant) => vacant.insert(new),
            Entry::Occupied(occupied) => {
                let known = occupied.into_mut();
                known.list = self.list;
                if known.uid != identity.uid {
                    let before = mem::replace(known, new);
                    if before.is_told {
                        (self.on)(Seen::Deleted(Identity {
                            uid: before.uid,
                            ..identity
                        }));
                    }
                }
                known
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{ResourceExt, api::ObjectMeta};
    use proptest::prelude::*;

    use super::*;

    /// What a book told, in words.
    fn told(script: impl FnOnce(&mut Book<ConfigMap, &mut dyn FnMut(Seen<ConfigMap>)>)) -> Vec<String> {
        let mut told = Vec::new();
        let mut on = |seen: Seen<ConfigMap>| {
            told.push(match seen {
                Seen::Applied(map) => format!("{} {}", map.name_any(), map.uid().unwrap_or_default()),
                Seen::Deleted(identity) => {
                    format!("{} {} gone", identity.name, identity.uid.unwrap_or_default())
                }
                Seen::Synced => "synced".to_owned(),
            });
        };
        script(&mut Book::new("configmaps", &mut on));
        told
    }

    fn map(name: &str, uid: &str) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("shop".to_owned()),
                name: Some(name.to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn identity(name: &str, uid: &str) -> Identity {
        Identity::from(&map(name, uid).metadata)
    }

    fn list(book: &mut Book<ConfigMap, &mut dyn FnMut(Seen<ConfigMap>)>, objects: &[(&str, &str)]) {
        book.begin_list();
        for (name, uid) in objects {
            book.see(map(name, uid));
        }
        book.end_list();
    }

    #[test]
    fn what_a_new_list_does_not_show_is_gone() {
        let told = told(|book| {
            list(book, &[("a", "1"), ("b", "2")]);
            book.see(map("c", "3"));
            list(book, &[("b", "2")]);
        });
        let expected = [
            "a 1", "b 2", "synced", "c 3", "b 2", "a 1 gone", "c 3 gone", "synced",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_name_that_came_back_is_another_object() {
        let told = told(|book| {
            list(book, &[("a", "1")]);
            list(book, &[("a", "2")]);
            book.see(map("a", "3"));
        });
        let expected = ["a 1", "synced", "a 1 gone", "a 2", "synced", "a 2 gone", "a 3"];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_late_end_of_a_predecessor_is_not_the_end_of_its_successor() {
        let told = told(|book| {
            list(book, &[("a", "2")]);
            book.lose(identity("a", "1"));
            book.lose(identity("a", "2"));
            book.lose(identity("a", "2"));
        });
        assert_eq!(told, ["a 2", "synced", "a 2 gone"], "and each ends once");
    }

    #[test]
    fn an_object_that_no_longer_fits_stays_until_it_is_deleted() {
        let told = told(|book| {
            list(book, &[("a", "1"), ("b", "2"), ("c", "3")]);
            for (name, uid) in [("a", "1"), ("b", "2"), ("c", "3")] {
                book.see_unfit(identity(name, uid));
            }
            book.lose(identity("a", "1"));
            book.begin_list();
            book.see_unfit(identity("c", "3"));
            book.end_list();
            book.see(map("c", "3"));
        });
        let expected = [
            "a 1", "b 2", "c 3", "synced", "a 1 gone", "b 2 gone", "synced", "c 3",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn an_object_that_never_fitted_is_never_gone() {
        let told = told(|book| {
            list(book, &[]);
            book.see_unfit(identity("a", "1"));
            book.see_unfit(identity("b", "2"));
            book.lose(identity("a", "1"));
            list(book, &[]);
        });
        assert_eq!(told, ["synced", "synced"]);
    }

    #[test]
    fn a_list_that_starts_over_judges_by_the_last_start() {
        let told = told(|book| {
            list(book, &[("a", "1"), ("b", "2")]);
            book.begin_list();
            book.see(map("a", "1"));
            list(book, &[("b", "2")]);
        });
        assert_eq!(told, ["a 1", "b 2", "synced", "a 1", "b 2", "a 1 gone", "synced"]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Another object of this name, or a change of it; whether it fits its type.
        Write(u8, bool),
        Delete(u8),
        /// The watch is cut: what follows is missed until the next list.
        Cut,
        List,
        /// A list of two moments: these changes come after its first half. No watch begins there.
        Torn(Vec<(u8, Option<bool>)>),
    }

    /// What exists, by name: its uid, and whether it fits its type.
    #[derive(Default)]
    struct World {
        objects: BTreeMap<String, (String, bool)>,
        made: usize,
    }

    impl World {
        /// Another object of this name, or a change of it; returns its uid.
        fn write(&mut self, name: &str, fits: bool) -> String {
            let made = &mut self.made;
            let object = self.objects.entry(name.to_owned()).or_insert_with(|| {
                *made += 1;
                (made.to_string(), fits)
            });
            object.1 = fits;
            object.0.clone()
        }

        /// Shows the objects of some names to the book, as a page does.
        fn show(&self, names: std::ops::Range<u8>, book: &mut Book<ConfigMap, impl FnMut(Seen<ConfigMap>)>) {
            for name in names.map(|name| name.to_string()) {
                match self.objects.get(&name) {
                    Some((uid, true)) => book.see(map(&name, uid)),
                    Some((uid, false)) => book.see_unfit(identity(&name, uid)),
                    None => {}
                }
            }
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..4_u8, any::<bool>()).prop_map(|(name, fits)| Step::Write(name, fits)),
            3 => (0..4_u8).prop_map(Step::Delete),
            1 => Just(Step::Cut),
            2 => Just(Step::List),
            1 => prop::collection::vec((0..4_u8, any::<Option<bool>>()), 0..6).prop_map(Step::Torn),
        ]
    }

    proptest! {
        /// It only adds what is applied and removes what is deleted.
        #[test]
        fn a_follower_that_keeps_no_book_knows_what_exists(steps in prop::collection::vec(step(), 0..60)) {
            let follower = RefCell::new(BTreeMap::new());
            let mut ended = BTreeSet::new();
            let mut book = Book::new("configmaps", |seen: Seen<ConfigMap>| {
                let mut follower = follower.borrow_mut();
                match seen {
                    Seen::Applied(map) => {
                        assert!(!ended.contains(&map.uid()), "it ended before");
                        let before = follower.insert(map.name_any(), map.uid());
                        assert!(before.is_none_or(|before| before == map.uid()), "one object at a time");
                    }
                    Seen::Deleted(gone) => {
                        assert_eq!(follower.remove(&gone.name), Some(gone.uid.clone()), "it was applied");
                        assert!(ended.insert(gone.uid), "each ends once");
                    }
                    Seen::Synced => {}
                }
            });
            let mut world = World::default();
            let mut watches = false;
            for step in steps.into_iter().chain([Step::List]) {
                match step {
                    Step::Write(name, fits) => {
                        let uid = world.write(&name.to_string(), fits);
                        if watches && fits {
                            book.see(map(&name.to_string(), &uid));
                        } else if watches {
                            book.see_unfit(identity(&name.to_string(), &uid));
                        }
                    }
                    Step::Delete(name) => {
                        let name = name.to_string();
                        if let Some((uid, _)) = world.objects.remove(&name) && watches {
                            book.lose(identity(&name, &uid));
                        }
                    }
                    Step::Cut => watches = false,
                    Step::List => {
                        watches = true;
                        book.begin_list();
                        world.show(0..4, &mut book);
                        book.end_list();
                    }
                    Step::Torn(changes) => {
                        watches = false;
                        book.begin_list();
                        world.show(0..2, &mut book);
                        for (name, change) in changes {
                            match change {
                                Some(fits) => {
                                    world.write(&name.to_string(), fits);
                                }
                                None => {
                                    world.objects.remove(&name.to_string());
                                }
                            }
                        }
                        world.show(2..4, &mut book);
                        book.end_list();
                    }
                }
                if !watches {
                    continue;
                }
                let follower = follower.borrow();
                for (name, uid) in &*follower {
                    prop_assert_eq!(world.objects.get(name).map(|(uid, _)| uid), uid.as_ref());
                }
                for (name, _) in world.objects.iter().filter(|(_, (_, fits))| *fits) {
                    prop_assert!(follower.contains_key(name), "{} exists", name);
                }
            }
        }
    }
}

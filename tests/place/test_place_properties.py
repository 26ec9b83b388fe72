"""Property tests of places, with random places, strings and clusters."""

from __future__ import annotations

from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placer.errors import PlaceError
from placer.place import Cluster, Location, NodeKind, Place
from placer.place.diagnose import PARTS

drawn = settings(
    derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

Ids = tuple[int, ...] | Literal["*"] | None

names = st.one_of(
    st.sampled_from(["worker", "ps", "heter"]),
    st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
)
kinds = st.one_of(
    st.sampled_from(["cpu", "gpu", "tpu"]),
    st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
).filter(lambda kind: kind not in PARTS)


def ids_below(count: int) -> st.SearchStrategy[Ids]:
    some = st.sets(st.integers(0, count - 1), min_size=1, max_size=8)
    return st.one_of(st.none(), st.just("*"), some.map(lambda ids: tuple(sorted(ids))))


@st.composite
def places(
    draw: st.DrawFn,
    names: st.SearchStrategy[str] = names,
    kinds: st.SearchStrategy[str] = kinds,
    ids: st.SearchStrategy[Ids] = ids_below(40),  # noqa: B008  # a strategy is a constant
) -> Place:
    node = draw(st.none() | names)
    device = draw(st.none() | kinds)
    return Place(
        node, draw(ids) if node else None, device, draw(ids) if device else None
    )


# Few names and ids, so that merged places often have the same ones.
nested = places(
    st.sampled_from(["worker", "ps"]), st.sampled_from(["cpu", "gpu"]), ids_below(2)
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    device = st.tuples(kinds, st.integers(1, 3))
    devices = st.lists(device, min_size=1, max_size=3, unique_by=lambda d: d[0])
    kind = st.builds(NodeKind, names, st.integers(1, 4), devices.map(tuple))
    kinds_of_nodes = st.lists(kind, min_size=1, max_size=3, unique_by=lambda k: k.name)
    return Cluster(tuple(draw(kinds_of_nodes)))


@st.composite
def placed(draw: st.DrawFn) -> tuple[Cluster, Place]:
    cluster = draw(clusters())
    kind = draw(st.sampled_from(cluster.kinds))
    device, count = draw(st.sampled_from(kind.devices))
    node_ids, device_ids = draw(ids_below(kind.count)), draw(ids_below(count))
    return cluster, Place(kind.name, node_ids, device, device_ids)


spelt = st.text(alphabet="/:,*-019_ \n\0Gnodejbtaskrplicvugw", max_size=30)


@drawn
@given(places().filter(lambda place: place != Place()))
def test_a_place_prints_and_reads_back(place: Place) -> None:
    assert Place.parse(str(place)) == place


@drawn
@given(
    st.sampled_from(["/node:", "/job:"]),
    names,
    st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True),
    st.sampled_from(["/", "/device:"]),
    st.sampled_from(["cpu", "GPU"]),
    st.booleans(),
)
def test_the_printed_form_of_any_spelling_is_parsed_and_printed_unchanged(
    node: str, name: str, ids: list[int], lead: str, kind: str, swapped: bool
) -> None:
    listed = ",".join(map(str, ids))
    task = f":{listed}" if node == "/node:" else f"/task:{ids[0]}"
    parts = [f"{node}{name}{task}", f"{lead}{kind}:{listed}"]
    printed = str(Place.parse("".join(reversed(parts) if swapped else parts)))
    assert str(Place.parse(printed)) == printed


def read(text: str) -> Place | PlaceError:
    try:
        return Place.parse(text)
    except PlaceError as error:
        return error


@settings(drawn, max_examples=500)
@given(st.one_of(st.text(max_size=40), spelt, spelt.map("/node:".__add__)))
def test_any_text_is_a_place_or_a_mistake_inside_it(text: str) -> None:
    outcome = read(text)
    if isinstance(outcome, Place):
        assert Place.parse(str(outcome)) == outcome
        return
    assert outcome.span is not None
    last = outcome.span.column + outcome.span.length - 1
    assert 1 <= outcome.span.column <= last <= max(1, len(text))
    assert len(outcome.span.text) == len(text)
    assert outcome.span.text.isprintable()


@drawn
@given(nested)
def test_the_empty_place_is_the_identity_of_merging(place: Place) -> None:
    assert Place.merge(Place(), place) == place
    assert Place.merge(place, Place()) == place
    assert Place.merge(place, place) == place


@drawn
@given(nested, nested)
def test_the_parts_of_the_inner_place_are_kept(outer: Place, inner: Place) -> None:
    merged = Place.merge(outer, inner)
    if inner.node is not None:
        assert merged.node == inner.node
    if inner.node_ids is not None:
        assert merged.node_ids == inner.node_ids
    if inner.device is not None:
        assert merged.device == inner.device
    if inner.device_ids is not None:
        assert merged.device_ids == inner.device_ids
    assert merged.node_ids in (outer.node_ids, inner.node_ids)
    assert merged.device_ids in (outer.device_ids, inner.device_ids)


def comes_back(a: str | None, ids: Ids, b: str | None, c: str | None) -> bool:
    """Whether a name with ids is replaced by another name and then used again."""
    return ids is not None and a == c and b not in (None, a)


@drawn
@given(nested, nested, nested)
def test_merging_is_associative_unless_a_name_is_replaced_and_used_again(
    a: Place, b: Place, c: Place
) -> None:
    inwards = Place.merge(Place.merge(a, b), c)
    outwards = Place.merge(a, Place.merge(b, c))
    node_back = c.node_ids is None and comes_back(a.node, a.node_ids, b.node, c.node)
    device_back = c.device_ids is None and comes_back(
        a.device, a.device_ids, b.device, c.device
    )
    same_node = (inwards.node, inwards.node_ids) == (outwards.node, outwards.node_ids)
    same_device = (inwards.device, inwards.device_ids) == (
        outwards.device,
        outwards.device_ids,
    )
    assert same_node == (not node_back)
    assert same_device == (not device_back)


@drawn
@given(placed())
def test_the_canonical_place_is_shortest_and_has_the_same_devices(
    cluster_and_place: tuple[Cluster, Place],
) -> None:
    cluster, place = cluster_and_place
    canonical = cluster.canonical(place)
    assert cluster.resolve(canonical) == cluster.resolve(place)
    assert cluster.canonical(canonical) == canonical
    assert len(str(canonical)) <= len(str(place))


@drawn
@given(clusters(), st.data())
def test_places_with_the_same_devices_have_the_same_canonical_form(
    cluster: Cluster, data: st.DataObject
) -> None:
    kind = cluster.kinds[0]
    device, count = kind.devices[0]
    a, b = (
        Place(
            kind.name,
            data.draw(ids_below(kind.count)),
            device,
            data.draw(ids_below(count)),
        )
        for _ in range(2)
    )
    same_set = cluster.resolve(a) == cluster.resolve(b)
    assert (cluster.canonical(a) == cluster.canonical(b)) == same_set


@drawn
@given(placed())
def test_a_place_is_an_ordered_set_of_devices_that_exist(
    cluster_and_place: tuple[Cluster, Place],
) -> None:
    cluster, place = cluster_and_place
    locations = cluster.resolve(place)
    assert list(locations) == sorted(set(locations))
    assert locations
    kind = cluster.kind(locations[0].node)
    every = {
        Location(kind.name, node, device, number)
        for node in range(kind.count)
        for device, count in kind.devices
        for number in range(count)
    }
    assert set(locations) <= every
    nodes = tuple(dict.fromkeys(location.node_name for location in locations))
    assert cluster.nodes(place) == nodes


@drawn
@given(clusters())
def test_a_cluster_prints_and_reads_back(cluster: Cluster) -> None:
    assert Cluster.parse(cluster.text()) == cluster
    assert Cluster.parse(str(cluster)).text() == cluster.text()

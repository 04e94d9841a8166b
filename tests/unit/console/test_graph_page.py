"""Where the tables of a graph are drawn."""

from include.console import graph_page


def test_each_table_stands_right_of_all_that_it_reads():
    drawn = graph_page.layout("abcd", [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")])
    x = {place.name: place.x for place in drawn.nodes}
    assert x["a"] < x["b"] < x["c"] < x["d"]


def test_no_two_nodes_share_a_place():
    drawn = graph_page.layout("abcdef", [("a", "d"), ("b", "d"), ("c", "e"), ("d", "f")])
    assert len({(place.x, place.y) for place in drawn.nodes}) == 6


def test_a_large_graph_is_drawn_around_one_table_and_counts_what_is_left_out():
    names = [f"t{number}" for number in range(300)]
    edges = [(names[number // 2], names[number]) for number in range(1, 300)]
    drawn = graph_page.layout(names, edges, "t150")
    assert len(drawn.nodes) == graph_page.MOST_NODES
    assert drawn.left_out == 300 - graph_page.MOST_NODES
    assert {"t150", "t75"} <= {place.name for place in drawn.nodes}
    assert sum(place.folded for place in drawn.nodes) > 0


def test_a_cycle_is_drawn_too():
    assert len(graph_page.layout("ab", [("a", "b"), ("b", "a")]).nodes) == 2

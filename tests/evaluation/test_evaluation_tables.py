from diffretriever.evaluation.formats.tables import format_table, markdown_table


def test_plain_table() -> None:
    table = format_table([["BM25", 0.5, 10], ["a longer name", 0.12345, 2]], ["system", "nDCG@10", "n"])
    assert table == (
        "system         nDCG@10   n\n-------------  -------  --\nBM25            0.5000  10\na longer name   0.1235   2"
    )


def test_markdown_table_escapes_what_would_break_it() -> None:
    table = markdown_table([["a|b\nc <b>", 0.5]], ["text", "value"])
    assert table == "| text | value |\n| :--- | ---: |\n| a\\|b c &lt;b> | 0.5000 |"


def test_no_rows() -> None:
    assert format_table([], ["a", "b"]) == "a  b\n-  -"
    assert markdown_table([], ["a"]) == "| a |\n| :--- |"

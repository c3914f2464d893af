import pytest

from holdfast.retrieval.types import Document


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Orsa"\nA town.\nOld.', "Orsa", "A town.\nOld."),
        ("Orsa\nA town.", "Orsa", "A town."),
        ('"Weird Al" Yankovic\nA singer.', '"Weird Al" Yankovic', "A singer."),  # inner quotes are part of the title
        ('""Heroes""\nAn album.', '"Heroes"', "An album."),  # one pair goes, as the corpus put it there
        ('"\nx', '"', "x"),
        ("one line", "one line", ""),
        ("", "", ""),
    ],
)
def test_title_and_text(contents, title, text):
    document = Document("1", contents)
    assert (document.title, document.text) == (title, text)

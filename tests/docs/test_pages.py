from pathlib import Path

from spark_ckpt.settings_page import settings_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_settings_page_is_what_the_settings_say():
    """Regenerate with: python -m spark_ckpt.settings_page > docs/settings.md"""
    assert (DOCS / "settings.md").read_text() == settings_page()


def test_every_page_that_the_readme_names_exists():
    readme = (DOCS.parent / "README.md").read_text()
    named = {word.strip("`.,:") for word in readme.split() if word.strip("`").startswith("docs/")}

    missing = [name for name in sorted(named) if not (DOCS.parent / name).exists()]

    assert named
    assert missing == []

"""The report: one interactive HTML page about runs, which needs no network and no other file.

`sections` turns views of the runs into blocks, `page` turns blocks into HTML. The data come from
`rayfl.analysis.views`, so that figures and the page show the same numbers.
"""

from rayfl.analysis.report.report import check_report_file, report_html, write_report
from rayfl.analysis.report.study import Study, make_study

__all__ = ["Study", "check_report_file", "make_study", "report_html", "write_report"]
